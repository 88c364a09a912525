"""The figures: how quick and how small Sickbay is, as ratios measured side by side. `python -m bench` runs all."""
