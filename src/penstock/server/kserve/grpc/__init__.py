"""The dialect over gRPC: an extra, ``penstock[grpc]``. Each call is one of the routes over HTTP."""
