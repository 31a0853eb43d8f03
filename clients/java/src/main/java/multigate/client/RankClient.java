package multigate.client;

import com.google.gson.Gson;
import io.grpc.ChannelCredentials;
import io.grpc.ClientInterceptor;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.TlsChannelCredentials;
import io.grpc.stub.MetadataUtils;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import multigate.Ranking.RankRequest;
import multigate.Ranking.RankResponse;
import multigate.RankingServiceGrpc;

/** A client of the ranking service: one channel with the service config of retries and balancing. */
public final class RankClient implements AutoCloseable {
  private static final Metadata.Key<String> AUTHORIZATION =
      Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

  private final ManagedChannel channel;
  private final RankingServiceGrpc.RankingServiceBlockingStub stub;
  private final Duration timeout;

  /**
   * Connects on the first call.
   *
   * @param target host:port of the server, or dns:///host:port
   * @param timeout that a call may take, retries included
   * @param token bearer token sent with every call; empty: none
   * @param ca PEM file of the certificates to trust; null: no TLS
   * @throws IllegalArgumentException if the target is no address of a gRPC server
   */
  public RankClient(String target, Duration timeout, String token, File ca) throws IOException {
    if (!isAddress(target)) {
      throw new IllegalArgumentException(
          "target: expected host:port of a gRPC server, received \"" + target + '"');
    }
    ChannelCredentials credentials =
        ca == null
            ? InsecureChannelCredentials.create()
            : TlsChannelCredentials.newBuilder().trustManager(ca).build();
    channel =
        Grpc.newChannelBuilder(target, credentials)
            .defaultServiceConfig(serviceConfig())
            .enableRetry()
            .build();
    this.timeout = timeout;
    Metadata metadata = new Metadata();
    if (!token.isEmpty()) {
      metadata.put(AUTHORIZATION, "Bearer " + token);
    }
    ClientInterceptor interceptor = MetadataUtils.newAttachHeadersInterceptor(metadata);
    stub = RankingServiceGrpc.newBlockingStub(channel).withInterceptors(interceptor);
  }

  /** Ranks the request's candidates; a failed call throws a StatusRuntimeException. */
  public RankResponse rank(RankRequest request) {
    return stub.withDeadlineAfter(timeout.toMillis(), TimeUnit.MILLISECONDS).rank(request);
  }

  @Override
  public void close() {
    channel.shutdownNow();
  }

  /**
   * Whether a target is host:port, alone or after gRPC's dns:///. Of all else gRPC would take port
   * 443, or say how it parses names.
   */
  private static boolean isAddress(String target) {
    String name = target.replaceFirst("^dns:///", "");
    try {
      URI uri = URI.create("//" + name);
      boolean whole = uri.getHost() != null && name.equals(uri.getAuthority());
      return whole && 0 < uri.getPort() && uri.getPort() < 65536;
    } catch (IllegalArgumentException notOne) {
      return false;
    }
  }

  private static Map<String, ?> serviceConfig() throws IOException {
    try (InputStream file = RankClient.class.getResourceAsStream("/service_config.json")) {
      @SuppressWarnings("unchecked")
      Map<String, ?> config =
          new Gson().fromJson(new InputStreamReader(file, StandardCharsets.UTF_8), Map.class);
      return config;
    }
  }
}
