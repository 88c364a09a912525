"""Decisions: pure functions of tables, policy and what was read. No I/O, no clock, no randomness, no logging."""
