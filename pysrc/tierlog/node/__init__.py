"""A server that speaks Kafka's protocol: `tierlog serve` ([SERVE.md]).

    server > connection > apis > handlers/<one file per API> > node > archive > cluster_view

Each handler module implements one API. The first line of its docstring names the API key, the
versions and the parts that are not implemented. A handler module has ``KEY``, ``VERSIONS`` (the
lowest and the highest), ``REQUEST`` (the class of kafka-python that describes the request) and

    async def handle(node: Node, request: Any, client: Client) -> Any: ...

which returns an object of kafka-python's response class, a `wire.RawBody`, or None for no answer. A
handler is cancelled when its client disconnects. ApiVersions is answered from the table in `apis`,
so it advertises exactly the implemented versions.
"""
