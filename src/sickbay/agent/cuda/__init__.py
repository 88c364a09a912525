"""Our own exercises of NVIDIA GPUs: the driver's library through ctypes and kernels in PTX, nothing to install.

Everything here runs in a child process (`sickbay.agent.checks.apart`): a GPU that hangs takes only that one with it. An
exercise takes wishes as JSON has them and returns a `Result`.
"""
