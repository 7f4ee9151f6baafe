"""How a service starts its engine, talks to it and pairs it with the engines of others."""
