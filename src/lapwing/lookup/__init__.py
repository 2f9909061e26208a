"""nsqlookupd: the registry of topics and the nsqds that have them."""
