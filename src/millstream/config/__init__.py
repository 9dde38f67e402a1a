"""Configuration with Kafka's names, defaults and limits: topics' and brokers'."""
