// Ranks the candidates of a RankRequest, JSON on standard input; prints a line per ranked item.
//
//	rank --target localhost:8500 < request.json
package main

import (
	"context"
	_ "embed"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	pb "multigate/clients/go/ranking"
)

// Retries of UNAVAILABLE within a budget, and calls over all addresses of the target in turn.
//
//go:embed service_config.json
var serviceConfig string

func main() {
	target := flag.String("target", "localhost:8500", "host:port of the server")
	seconds := flag.Float64("timeout", 5, "seconds that a call may take, retries included")
	token := flag.String("token", "", "bearer token sent with every call")
	ca := flag.String("ca", "", "PEM file of the certificates to trust; empty: no TLS")
	flag.Parse()
	timeout := time.Duration(*seconds * float64(time.Second))
	if err := rank(*target, timeout, *token, *ca); err != nil {
		if failed, ok := status.FromError(err); ok {
			err = fmt.Errorf("%s: %s: %s", *target, failed.Code(), failed.Message())
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func rank(target string, timeout time.Duration, token, ca string) error {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	request := &pb.RankRequest{}
	if err := protojson.Unmarshal(text, request); err != nil {
		return fmt.Errorf("request: expected a RankRequest as JSON: %w", err)
	}
	connection, err := dial(target, ca)
	if err != nil {
		return err
	}
	defer connection.Close()

	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	ranked, err := pb.NewRankingServiceClient(connection).Rank(ctx, request)
	if err != nil {
		return err
	}
	show(ranked)
	return nil
}

// dial makes the channel, which connects on the first call.
func dial(target, ca string) (*grpc.ClientConn, error) {
	if !isAddress(target) {
		return nil, fmt.Errorf("target: expected host:port of a gRPC server, received %q", target)
	}
	transport := insecure.NewCredentials()
	if ca != "" {
		var err error
		if transport, err = credentials.NewClientTLSFromFile(ca, ""); err != nil {
			return nil, err
		}
	}
	return grpc.NewClient(
		target,
		grpc.WithTransportCredentials(transport),
		grpc.WithDefaultServiceConfig(serviceConfig),
	)
}

// isAddress tells whether a target is host:port, or has a scheme that gRPC reads itself. Of all else
// gRPC would look up the whole as a name, or take port 443.
func isAddress(target string) bool {
	for _, scheme := range []string{"dns:", "passthrough:", "unix:", "unix-abstract:"} {
		if address, found := strings.CutPrefix(target, scheme); found {
			return address != ""
		}
	}
	host, port, err := net.SplitHostPort(target)
	number, notNumber := strconv.ParseUint(port, 10, 16)
	return err == nil && notNumber == nil && number > 0 && host != "" && !strings.ContainsAny(host, "/ ")
}

func show(ranked *pb.RankResponse) {
	tasks := []string{}
	for task := range ranked.TaskScores {
		tasks = append(tasks, task)
	}
	slices.Sort(tasks)
	for place, score := range ranked.Score {
		fields := []string{itemID(ranked.ItemId, place), "score=" + number(score)}
		for _, task := range tasks {
			fields = append(fields, task+"="+number(ranked.TaskScores[task].Values[place]))
		}
		fmt.Println(strings.Join(fields, "\t"))
	}
	for _, warning := range ranked.Warnings {
		fmt.Fprintln(os.Stderr, warning)
	}
}

func itemID(ids *pb.ItemIds, place int) string {
	if integers := ids.GetIntegers(); integers != nil {
		return strconv.FormatInt(integers.Values[place], 10)
	}
	return ids.GetTexts().Values[place]
}

func number(value float32) string {
	return strconv.FormatFloat(float64(value), 'g', -1, 32)
}
