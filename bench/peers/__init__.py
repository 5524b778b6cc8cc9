"""The peers: replay libraries measured beside the product, each in its own environment under .venv-peers/.

`setup` builds those environments with the versions pinned in requirements-*.txt; a `*_driver` puts one library behind
`bench.driver.Driver`, used the way its own documentation recommends.
"""
