"""Why a plan is as it is: what each decision is worth, what binds it, and where another plan takes over."""
