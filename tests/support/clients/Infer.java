// java Infer.java ADDRESS TOKEN BODY: what Java's HttpClient sends by default, which offers HTTP/2, and as HTTP/1.1.
import java.io.ByteArrayInputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;

public class Infer {
    public static void main(String[] given) throws Exception {
        String body = Files.readString(Path.of(given[2]));
        for (HttpClient client : new HttpClient[] {
            HttpClient.newHttpClient(), HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build()
        }) {
            URI ready = URI.create("http://" + given[0] + "/v2/health/ready");
            print(client, HttpRequest.newBuilder(ready).build());
            BodyPublisher stream = BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(body.getBytes()));
            for (BodyPublisher publisher : new BodyPublisher[] {BodyPublishers.ofString(body), stream}) {
                URI infer = URI.create("http://" + given[0] + "/v2/models/simple/infer");
                print(client, HttpRequest.newBuilder(infer).header("Authorization", "Bearer " + given[1])
                    .POST(publisher).build());
            }
        }
    }

    private static void print(HttpClient client, HttpRequest request) throws Exception {
        var answer = client.send(request, BodyHandlers.ofString());
        System.out.println(answer.statusCode() + " " + answer.body());
    }
}
