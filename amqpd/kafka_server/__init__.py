"""Kafka's protocol for the broker's streams: Kafka's producers, consumers and consumer groups read and write them.

    server.py             the listener, and the state that all connections share
    connection.py         one socket: frames, requests in order, replies in the same order
    messages.py           requests and responses as Python objects
    sasl.py               logins
    topics.py             streams as topics: Metadata, DescribeCluster
    topic_admin.py        CreateTopics, DeleteTopics, DescribeConfigs
    topic_configs.py      topic configs as arguments of a stream
    produce.py            Produce, InitProducerId
    fetch.py              Fetch, and the requests that wait for records
    fetch_wire.py         the bytes of Fetch
    list_offsets.py       ListOffsets
    groups.py             the state machine of a consumer group, without IO
    coordinator.py        groups with their timers and members: JoinGroup and the like
    group_offsets.py      OffsetCommit, OffsetFetch, OffsetDelete
    group_admin.py        DescribeGroups, ListGroups, DeleteGroups
    committed_offsets.py  the log of committed offsets

A *topic* is a stream with one partition, number 0. The log has the format of Kafka's record batches, so batches of
producers are stored as they are, after they were checked, and sent to consumers as they are stored.

Only `kafka.port` and `kafka.tls.port` load this package. It needs kafka-python, which has the definitions of Kafka's
messages.
"""
