"""What the operator runs, one file a verb; nothing else imports it."""
