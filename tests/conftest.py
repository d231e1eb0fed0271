"""Settings of all tests: JAX must not guess how shapes of different rank go together."""

import jax

jax.config.update("jax_numpy_rank_promotion", "raise")
