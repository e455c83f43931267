"""The HTTP face of inference: several exported models behind one loopback port.

`server.run` opens the port and loads the models; `app.create_app` is the ASGI application alone.
Needs no torch and no transformers.
"""
