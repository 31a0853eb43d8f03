package main

// The messages' Go code, made from their one definition. protoc comes from the system; its two
// plugins are this module's tools.
//go:generate go build -o .tools/ google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
//go:generate mkdir -p ranking
//go:generate protoc --plugin=.tools/protoc-gen-go --plugin=.tools/protoc-gen-go-grpc -I ../../serving/protos --go_out=ranking --go_opt=paths=source_relative --go_opt=Mranking.proto=multigate/clients/go/ranking --go-grpc_out=ranking --go-grpc_opt=paths=source_relative --go-grpc_opt=Mranking.proto=multigate/clients/go/ranking ranking.proto
