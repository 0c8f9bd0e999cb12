"""Pictures: what they show (``kinds``), where everything goes on the page, and what stands in words beside it."""
