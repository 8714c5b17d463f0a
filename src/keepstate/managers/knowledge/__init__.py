"""WHICH sources does an agent know? Knowledge sources, their documents and synchronizations."""
