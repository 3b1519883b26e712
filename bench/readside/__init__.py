"""The parts of bench/reads."""
