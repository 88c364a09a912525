"""`python -m sickbay.agent.nvml`: answers on stdout what is asked on stdin, and ends when stdin does."""

from sickbay.agent.nvml.child import main

if __name__ == "__main__":
    main()
