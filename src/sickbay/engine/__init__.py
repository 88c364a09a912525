"""The loop: learn, plan, commit, execute. All it knows is in the store: it may be thrown away after any round."""
