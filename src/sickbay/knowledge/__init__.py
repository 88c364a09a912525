"""What is known of faults: data files with a source for each row, parsers, and the loaders of frozen tables."""
