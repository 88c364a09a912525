"""NVML, asked from a process of its own: a GPU that hangs its driver hangs that process, and not the agent.

`python -m sickbay.agent.nvml` is the child (`child`, `readings`); the agent holds the other end (`watched.Nvml`).
"""
