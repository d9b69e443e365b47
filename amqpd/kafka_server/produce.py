"""stub"""

APIS = ()
