"""`sickbay up --here`: this machine itself as the one node, with its real GPUs, kernel log and checks.

The supervisor, the gangs and the files are the local cluster's. What differs: the seat's identity is the machine's own
(a supervisor that ends and returns is no reboot), its devices are real, its agent is the real `sickbay agent`, and
nothing here can reboot, replace or fence the machine but its own agent, where that is allowed.
"""
