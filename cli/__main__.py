"""`python -m amqpd.cli` is amqpctl."""

import sys

from amqpd.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
