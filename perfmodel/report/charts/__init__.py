"""Pictures: what they show (``schema``), where everything goes on the page, and what stands in words beside it."""
