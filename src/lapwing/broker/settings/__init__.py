"""Settings: of the node (`options`), of topics and channels (`definitions`), and for patterns of names (`policies`).

`store` resolves the layers into what is in force.
"""
