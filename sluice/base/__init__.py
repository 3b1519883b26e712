"""What every room may use: connections, counters, the supervisor's protocol, the terminal."""
