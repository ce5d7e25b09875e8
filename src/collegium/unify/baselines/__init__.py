"""Methods that unification is measured against, on the same experts."""
