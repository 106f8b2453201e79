"""Names of librdkafka's properties that a configuration may set: those of a consumer that are text or numbers.

Source: ``rd_kafka_conf_properties_show`` of librdkafka 2.16, without producer properties, callbacks, and what the
sink sets itself.
"""

REGISTRY_PREFIX = "schema.registry."

LIBRDKAFKA = frozenset(
    """
    allow.auto.create.topics api.version.fallback.ms api.version.request api.version.request.timeout.ms
    bootstrap.servers broker.address.family broker.address.ttl broker.version.fallback check.crcs client.dns.lookup
    client.id client.rack connections.max.idle.ms coordinator.query.interval.ms debug enable.metrics.push
    enable.sasl.oauthbearer.unsecure.jwt enable.ssl.certificate.verification fetch.error.backoff.ms fetch.max.bytes
    fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms fetch.wait.max.ms group.id heartbeat.interval.ms
    https.ca.location https.ca.pem isolation.level log.connection.close log.thread.name log_level max.in.flight
    max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms message.copy.max.bytes
    message.max.bytes metadata.broker.list metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms
    metadata.recovery.strategy plugin.library.paths queued.max.messages.kbytes queued.min.messages
    receive.message.max.bytes reconnect.backoff.jitter.ms reconnect.backoff.max.ms reconnect.backoff.ms
    retry.backoff.max.ms retry.backoff.ms sasl.kerberos.keytab sasl.kerberos.kinit.cmd
    sasl.kerberos.min.time.before.relogin sasl.kerberos.principal sasl.kerberos.service.name sasl.mechanism
    sasl.mechanisms sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
    sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
    sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
    sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
    sasl.oauthbearer.assertion.jwt.template.file sasl.oauthbearer.assertion.private.key.file
    sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.private.key.pem
    sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
    sasl.oauthbearer.client.id sasl.oauthbearer.client.secret sasl.oauthbearer.config sasl.oauthbearer.extensions
    sasl.oauthbearer.grant.type sasl.oauthbearer.metadata.authentication.type sasl.oauthbearer.method
    sasl.oauthbearer.scope sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url sasl.password
    sasl.username security.protocol session.timeout.ms socket.blocking.max.ms socket.connection.setup.timeout.ms
    socket.keepalive.enable socket.max.fails socket.nagle.disable socket.receive.buffer.bytes
    socket.send.buffer.bytes socket.timeout.ms ssl.ca.certificate.stores ssl.ca.location ssl.ca.pem
    ssl.certificate.location ssl.certificate.pem ssl.cipher.suites ssl.crl.location ssl.curves.list
    ssl.endpoint.identification.algorithm ssl.engine.id ssl.engine.location ssl.key.location ssl.key.password
    ssl.key.pem ssl.keystore.location ssl.keystore.password ssl.providers ssl.sigalgs.list statistics.interval.ms
    topic.blacklist topic.metadata.propagation.max.ms topic.metadata.refresh.fast.cnt
    topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse
    """.split()
)

OWNED = frozenset(
    (
        "auto.commit.interval.ms",
        "auto.offset.reset",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.partition.eof",
    )
)
"""Properties that the sink sets itself: offsets follow the ledger, and a missing offset is an error."""

REGISTRY = frozenset(
    REGISTRY_PREFIX + name
    for name in (
        "url",
        "basic.auth.credentials.source",
        "basic.auth.user.info",
        "bearer.auth.credentials.source",
        "bearer.auth.token",
        "bearer.auth.logical.cluster",
        "bearer.auth.identity.pool.id",
        "bearer.auth.client.id",
        "bearer.auth.client.secret",
        "bearer.auth.scope",
        "bearer.auth.issuer.endpoint.url",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "timeout",
        "max.retries",
        "retries.wait.ms",
        "retries.max.wait.ms",
        "cache.capacity",
        "cache.latest.ttl.sec",
        "proxy",
    )
)
"""Properties of confluent-kafka's schema registry client, with the prefix under which the configuration has them."""

SECRETS = frozenset(
    (
        "sasl.password",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.assertion.private.key.pem",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.password",
        REGISTRY_PREFIX + "basic.auth.user.info",
        REGISTRY_PREFIX + "bearer.auth.token",
        REGISTRY_PREFIX + "bearer.auth.client.secret",
        REGISTRY_PREFIX + "ssl.key.password",
        REGISTRY_PREFIX + "proxy",
    )
)
"""Properties whose values are never shown."""

_ADVICE = {
    "sasl.jaas.config": "is a property of Java clients; set sasl.username and sasl.password",
    "ssl.truststore.location": "is a property of Java clients; set ssl.ca.location to a PEM file",
    "ssl.truststore.password": "is a property of Java clients; ssl.ca.location takes a PEM file without a password",
    "ssl.keystore.type": "is a property of Java clients; ssl.keystore.location takes a PKCS#12 file",
    "max.poll.records": "is a property of Java clients; chunk_offsets sets how many records are taken at a time",
}


def advice(name: str) -> str | None:
    """Why a property is refused; None if it is simply unknown."""
    if name in OWNED:
        return "is set by the sink, which follows its ledger and never skips a missing offset"
    return _ADVICE.get(name)


def by_environment_name() -> dict[str, str]:
    """Property by its name in an environment variable, in lower case: ``sasl_password`` → ``sasl.password``."""
    files = {f"{name}_file" for name in SECRETS}
    return {name.replace(".", "_"): name for name in LIBRDKAFKA | REGISTRY | OWNED | files}
