import java.io.IOException;
import java.io.OutputStream;
import java.net.HttpURLConnection;
import java.net.URL;
import java.nio.charset.StandardCharsets;
import java.util.Scanner;
import java.util.UUID;

/**
 * Posts with HttpURLConnection: java Post.java URL (gps|votes). Each line of input, "FIRST COUNT", is so many bodies,
 * sent again until they get 200; then it prints "ok". HttpURLConnection itself repeats a POST once if the connection
 * ends without an answer, and the program does not learn of it.
 */
public class Post {
    public static void main(String[] arguments) throws IOException {
        Scanner input = new Scanner(System.in);
        while (input.hasNextInt()) {
            int first = input.nextInt();
            int count = input.nextInt();
            for (int n = first; n < first + count; n++) {
                String key = UUID.randomUUID().toString();
                String body = arguments[1].equals("gps")
                    ? "{\"device\":\"" + n + "\",\"lat\":48.1,\"lon\":11.5,\"time\":" + (1767268800L + n) + "}"
                    : "{\"poll\":\"java\",\"choice\":\"" + n + "\"}";
                while (!sent(arguments[0] + "/" + arguments[1], key, body.getBytes(StandardCharsets.UTF_8))) {
                }
            }
            System.out.println("ok");
        }
    }

    static boolean sent(String url, String key, byte[] body) throws IOException {
        HttpURLConnection connection = (HttpURLConnection) new URL(url).openConnection();
        connection.setRequestMethod("POST");
        connection.setDoOutput(true);
        connection.setRequestProperty("Content-Type", "application/json");
        if (url.endsWith("/votes")) {
            connection.setRequestProperty("Idempotency-Key", key);
        }
        try {
            try (OutputStream out = connection.getOutputStream()) {
                out.write(body);
            }
            if (connection.getResponseCode() != 200) {
                return false;
            }
            connection.getInputStream().readAllBytes();
            return true;
        } catch (IOException error) { // the connection ended twice
            return false;
        }
    }
}
