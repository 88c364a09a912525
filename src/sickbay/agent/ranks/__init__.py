"""Ranks on any node: the directory through which whoever runs a rank and the node's agent know of each other."""
