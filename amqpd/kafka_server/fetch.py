"""stub"""

APIS = ()


class WaitingFetches:
    def __init__(self, broker):
        pass

    def stop(self):
        pass
