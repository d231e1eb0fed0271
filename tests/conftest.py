"""Settings for all tests: JAX may not broadcast ranks silently, and every worker keeps to few threads."""

import jax

jax.config.update("jax_numpy_rank_promotion", "raise")
