"""`python -m jaxmem demo`: plans published models and runs smaller ones."""
