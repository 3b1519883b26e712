"""Redis on several machines, of which Sentinels name the master."""
