"""Plans the memory of a JAX train step and makes XLA run the plan."""
