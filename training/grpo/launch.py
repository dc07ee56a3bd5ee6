def sharding(launch):
    return None
