import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;

/** Sends the same POST twice with the JDK's client in its default mode: HTTP/2 by `Upgrade: h2c`. */
public class UpgradingClient {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        HttpRequest request =
                HttpRequest.newBuilder(URI.create(arguments[0]))
                        .header("content-type", "application/json")
                        .header("x-api-key", arguments[1])
                        .POST(HttpRequest.BodyPublishers.ofString(arguments[2]))
                        .build();
        for (int i = 0; i < 2; i++) {
            HttpResponse<String> response =
                    client.send(request, HttpResponse.BodyHandlers.ofString());
            System.out.println(response.statusCode() + " " + response.body().replace("\n", " "));
        }
    }
}
