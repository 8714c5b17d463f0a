"""The inspector: the page that the server serves to browsers.

The folder `static` has its files, which `make setup` builds from `inspector/` in the repository. They are
part of wheels. A server without them still serves its operations.
"""
