"""The operator's verbs, one file each. Nothing imports them but `__main__`, which imports the chosen one only."""
