"""Spark reads topics, writes topics, and shows up on the brokers as a channel."""
