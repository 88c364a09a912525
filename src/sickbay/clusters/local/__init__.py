"""The local cluster: nodes are process trees on this machine. Files hold its state, pipes only wake; see `files`."""
