"""python -m sickbay"""

from sickbay.faces.cli.main import main

if __name__ == "__main__":
    main()
