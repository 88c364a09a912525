"""What the engine needs from the world. The contract of each port is its docstring; its suite is in `testing`.

All ports are synchronous: who wants concurrency runs them on threads behind the Executor (docs/decisions/0002).
"""
