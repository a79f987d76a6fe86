"""The topics of stores and log directories as one read-only cluster.

archive > partition > tiers > metadata, routing
"""
