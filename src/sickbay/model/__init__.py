"""The nouns: frozen values and the tables of their lives. No I/O, no clock, no randomness."""
