"""Who runs the engine, and what faces may ask of it."""
