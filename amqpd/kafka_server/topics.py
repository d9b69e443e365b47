"""stub"""
APIS = ()
