package multigate.client;

import com.google.protobuf.util.JsonFormat;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeSet;
import multigate.Ranking.ItemIds;
import multigate.Ranking.RankRequest;
import multigate.Ranking.RankResponse;

/**
 * Ranks the candidates of a RankRequest, JSON on standard input; prints a line per ranked item.
 *
 * <pre>java -jar target/rank.jar --target localhost:8500 &lt; request.json</pre>
 */
public final class Rank {
  public static void main(String[] arguments) {
    Map<String, String> options =
        new HashMap<>(Map.of("--target", "localhost:8500", "--timeout", "5", "--token", ""));
    for (int place = 0; place + 1 < arguments.length; place += 2) {
      options.put(arguments[place], arguments[place + 1]);
    }
    String target = options.get("--target");
    try {
      double seconds = Double.parseDouble(options.get("--timeout"));
      Duration timeout = Duration.ofMillis((long) (1000 * seconds));
      File ca = options.containsKey("--ca") ? new File(options.get("--ca")) : null;
      RankRequest.Builder request = RankRequest.newBuilder();
      String text = new String(System.in.readAllBytes(), StandardCharsets.UTF_8);
      JsonFormat.parser().merge(text, request);
      try (RankClient client = new RankClient(target, timeout, options.get("--token"), ca)) {
        show(client.rank(request.build()));
      }
    } catch (StatusRuntimeException error) {
      fail(target + ": " + error.getStatus().getCode() + ": " + details(error.getStatus()));
    } catch (IOException | IllegalArgumentException error) {
      fail(error.getMessage());
    }
  }

  private static void fail(String message) {
    System.err.println(message);
    System.exit(1);
  }

  /** What gRPC says, which of a connection that fails is only that it failed, and why. */
  private static String details(Status status) {
    Throwable cause = status.getCause();
    return status.getDescription() + (cause == null ? "" : ": " + cause.getMessage());
  }

  private static void show(RankResponse ranked) {
    for (int place = 0; place < ranked.getScoreCount(); place++) {
      StringBuilder line = new StringBuilder(itemId(ranked.getItemId(), place));
      line.append("\tscore=").append(ranked.getScore(place));
      for (String task : new TreeSet<>(ranked.getTaskScoresMap().keySet())) {
        float score = ranked.getTaskScoresOrThrow(task).getValues(place);
        line.append('\t').append(task).append('=').append(score);
      }
      System.out.println(line);
    }
    ranked.getWarningsList().forEach(System.err::println);
  }

  private static String itemId(ItemIds ids, int place) {
    return ids.hasIntegers()
        ? Long.toString(ids.getIntegers().getValues(place))
        : ids.getTexts().getValues(place);
  }
}
