"""stub"""

APIS = ()


class Coordinator:
    def __init__(self, broker):
        pass

    def stop(self):
        pass

    def vhost_deleted(self, name):
        pass
